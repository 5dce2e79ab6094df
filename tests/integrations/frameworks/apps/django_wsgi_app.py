"""Django under WSGI."""

import os

os.environ["SHOP_APP"] = "django_wsgi_app"

from django.core.wsgi import get_wsgi_application

from tests.integrations.frameworks.apps import django_project

assert django_project.__doc__

app = get_wsgi_application()
