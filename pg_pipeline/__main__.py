from pg_pipeline.cli.main import main

main()
