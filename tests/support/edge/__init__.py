"""A fuzzer for the HTTP edge: the fast protocol and plain ASGI get the same bytes and must give the same answers.

python -m tests.support.edge --seed 7 --requests 200000     many connections
python -m tests.support.edge --seed 7 --case 23             one connection, with its bytes and both answers
"""
