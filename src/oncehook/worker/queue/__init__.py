"""Work by a queue such as SQS: its messages name receipts, and the database decides who may lease them."""
