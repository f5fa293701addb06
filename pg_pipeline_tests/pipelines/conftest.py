from pg_pipeline_tests.orders import bench, make_orders

__all__ = ["bench", "make_orders"]
