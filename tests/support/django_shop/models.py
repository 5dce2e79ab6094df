"""The models of the shop."""

from django.db import models


class Invoice(models.Model):
    """The table that handlers write."""

    number = models.CharField(max_length=100, unique=True)
    status = models.CharField(max_length=20, default="paid")

    class Meta:
        app_label = "django_shop"


class Payment(models.Model):
    """A row with a foreign key, whose constraint PostgreSQL and SQLite check at the COMMIT."""

    invoice = models.ForeignKey(Invoice, models.CASCADE)

    class Meta:
        app_label = "django_shop"
