"""The addresses of sources: `path("webhooks/", include("oncehook.integrations.django.urls"))`."""

from django.urls import path

from oncehook.integrations.django.views import exempt, receive

app_name = "oncehook"
urlpatterns = [path("<path:address>", exempt(receive), name="receive")]
