"""What the API takes and answers, as types: checked on the way in, described in the OpenAPI document."""
