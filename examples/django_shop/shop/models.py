"""The models of the shop."""

from django.db import models


class Invoice(models.Model):
    """An invoice, which the shop creates at the checkout."""

    number = models.CharField(max_length=100, unique=True)
    email = models.EmailField()
    status = models.CharField(max_length=20, default="open")


class Payment(models.Model):
    """A payment of an invoice. A second one for the same invoice would be a mistake."""

    invoice = models.OneToOneField(Invoice, models.CASCADE)
    amount = models.PositiveIntegerField()
