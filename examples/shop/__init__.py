"""A small shop: FastAPI, SQLAlchemy, and one receipt mail for each paid invoice."""
