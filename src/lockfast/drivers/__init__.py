"""What runs flows for real: one driver for threads, one for asyncio, over sockets of their own."""
