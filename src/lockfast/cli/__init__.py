"""The `lockfast` command.

main.py      arguments, and which verb they mean; the verbs are imported only when asked for
run.py       `run`: take the lock, supervise the command, answer with its exit code
child.py     the command as a process group of its own, started only when the lock is held
guard.py     the process that stops that group in time even if the supervising one is killed or frozen
terminal.py  whose turn it is at the keyboard
chain.py     what a command is told of the locks held around it, in its environment
connect.py   a client out of --url, and names as people type them
look.py      `ls` and `show`
break_.py    `break`
server.py    `server start|status|stop`
talk.py      exit codes, stderr, and how times are written
"""
