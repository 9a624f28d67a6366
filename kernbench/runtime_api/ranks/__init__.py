"""The ranks of a spawn: running them, and finding out why some cannot go on.

`spawning` runs them. `waiting` is the graph of who waits for whom, `verdicts` and `circles` say
what it means, `reviewing` looks at the right moments; `livelock` sees who only polls, `watchdog`
(the one module that looks at a wall clock) who never gives way, `eager` what only buffering hides,
`exploring` what depends on the order of messages. `printing` keeps what ranks print apart.
"""
