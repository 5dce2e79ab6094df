"""Invoices in the admin, next to the events."""

from django.contrib import admin

from shop.models import Invoice


@admin.register(Invoice)
class InvoiceAdmin(admin.ModelAdmin):
    """Invoices."""

    list_display = ("number", "email", "status")
