"""Types of the API's requests and responses. They check the requests and describe both in the OpenAPI document."""
