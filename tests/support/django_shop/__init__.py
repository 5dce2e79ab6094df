"""A Django app whose handlers write invoices, for the tests of the Django integration."""
