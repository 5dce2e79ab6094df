"""A small shop with FastAPI and SQLAlchemy that sends one receipt mail per paid invoice."""
