"""Django under ASGI."""

import os

os.environ["SHOP_APP"] = "django_asgi_app"

from django.core.asgi import get_asgi_application

from oncehook.integrations.django.asgi import with_lifespan
from tests.integrations.frameworks.apps import django_project

assert django_project.__doc__

app = with_lifespan(get_asgi_application())
