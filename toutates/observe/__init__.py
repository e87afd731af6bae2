"""What watches the server: metrics, the status page, dumps and profiles."""
