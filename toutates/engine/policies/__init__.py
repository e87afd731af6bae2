"""Requests that wait by priority, in queues with policies of their own, until batches of preferred sizes are formed."""
