"""What a service says when it refuses: a status, a code to act on, and what to do."""

from fastapi.responses import JSONResponse


class ServiceError(Exception):
    """A refusal. On the wire: `{"error": code, "message": what to do}` with that status."""

    def __init__(self, status_code: int, code: str, message: str, *, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status_code = status_code
        self.code = code
        self.headers = headers

    def response(self) -> JSONResponse:
        """The refusal as a response."""
        return JSONResponse({"error": self.code, "message": str(self)}, self.status_code, headers=self.headers)


def forbidden_tenant(what: str) -> ServiceError:
    """The refusal to show or change something of another tenant."""
    return ServiceError(
        403,
        "forbidden_tenant",
        f"{what} belongs to another tenant. Ask with that tenant's X-Tenant header, if you are entitled to.",
    )
