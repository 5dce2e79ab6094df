"""The addresses of the Django project."""

from django.urls import include, path

from tests.integrations.frameworks.apps.django_project import home

urlpatterns = [path("", home), path("webhooks/", include("oncehook.integrations.django.urls"))]
