"""The test kit: real servers, a proxy that loses single messages, and one face for threads and asyncio.

servers.py  starts Valkey and Redis and does to them what operators and accidents do
proxy.py    stands between client and server, knows requests from replies, loses or delays the one you name
resp.py     the wire format, and a client of thirty lines that shares no code with what is tested
sides.py    runs one test body on `lockfast.sync` and on `lockfast.aio`
leaks.py    threads, child processes, sockets: what was left behind
"""
