"""Postgres and Java for people who have neither. Touches the state folder and the process environment only."""
