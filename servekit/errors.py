"""What can go wrong, as one tree.

    ServekitError                      anything we can say something useful about
    ├── ConfigError                    the words do not make a configuration      exit 2
    ├── PlanRefused                    the configuration does not make a service  exit 2
    │   ├── DoesNotFit                     its memory is larger than the hardware's
    │   ├── Impossible                     the hardware does not compute what it needs
    │   ├── MissesSlo                      it fits, and its users are promised more than it gives
    │   ├── HardwareMissing                this machine does not have that hardware
    │   └── NotBuilt                       this release cannot run what was asked
    ├── SourceError                    the weights cannot be fetched              exit 1
    │   └── SourceNotFound                 what was named is no source, or not there  exit 2
    ├── WeightsError                   the weights are not those of this model    exit 1
    ├── RequestError                   the client asked for something wrong       400
    │   ├── ContextTooLong                 more tokens than the model or the KV cache holds
    │   ├── TemplateError                  the chat template cannot render the messages
    │   ├── ModelNotFound                  a model that is not served             404
    │   ├── RouteNotFound                  a path or method that is not served    404, 405
    │   ├── UnsupportedMedia               a body that is not JSON                415
    │   ├── BodyTooLarge                   a body beyond server.max_body_mib      413
    │   ├── HeadTooLarge                   too many or too long headers           431
    │   ├── TooSlow                        a request that does not come to an end 408
    │   ├── Unauthorized                   no key, or one that is not known       401
    │   ├── Forbidden                      a key that is not for such a route     403
    │   └── UnsupportedField               a field that this release cannot honour
    ├── Overloaded                     the queue is full                          429
    │   ├── SloUnattainable                its first token would come too late
    │   ├── ConcurrencyExceeded            its key has as many running as it may
    │   ├── RequestRateExceeded            its key asks too often
    │   └── TokenRateExceeded              its key has used its tokens
    ├── NotReady                       loading or draining                        503
    │   ├── TooManyConnections             as many as server.max_connections are open
    │   └── LedgerUnwritable               what is used cannot be written down
    ├── DeadlineExceeded               the client's own deadline has passed       504
    └── EngineError                    our fault                                  500
        └── EngineDied                     the engine process is gone             503

Each says what was asked, what there is, and what to do. `status` is the HTTP status, `kind` and
`code` the `type` and `code` of an OpenAI error body, `exit_code` what the command line returns.
"""

from collections.abc import Mapping


class ServekitError(Exception):
    """Root of the tree; a subclass sets the four class values."""

    status = 500
    kind = "server_error"
    code = "internal_error"
    exit_code = 1

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        details: Mapping[str, int | float | str] | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.details = dict(details or {})
        self.retry_after_s = retry_after_s


class ConfigError(ServekitError):
    status = 400
    kind = "invalid_request_error"
    code = "invalid_config"
    exit_code = 2


class PlanRefused(ServekitError):
    code = "plan_refused"
    exit_code = 2


class DoesNotFit(PlanRefused):
    code = "does_not_fit"


class Impossible(PlanRefused):
    code = "impossible"


class MissesSlo(PlanRefused):
    code = "misses_slo"


class HardwareMissing(PlanRefused):
    code = "hardware_missing"


class NotBuilt(PlanRefused):
    status = 501
    code = "not_implemented"


class SourceError(ServekitError):
    code = "source_error"


class SourceNotFound(SourceError):
    code = "source_not_found"
    exit_code = 2


class WeightsError(ServekitError):
    code = "weights_error"


class RequestError(ServekitError):
    status = 400
    kind = "invalid_request_error"
    code = "invalid_request"


class ContextTooLong(RequestError):
    """`limit` is the smaller of the model's length and what the KV cache holds."""

    code = "context_length_exceeded"

    def __init__(
        self,
        *,
        prompt_tokens: int,
        max_tokens: int,
        max_model_len: int,
        max_servable_tokens: int,
        param: str = "prompt",
    ) -> None:
        limit = min(max_model_len, max_servable_tokens)
        super().__init__(
            f"{prompt_tokens} prompt tokens and {max_tokens} to generate make "
            f"{prompt_tokens + max_tokens}, but this deployment serves at most {limit} tokens a "
            f"request (model length {max_model_len}, KV cache {max_servable_tokens}); "
            "shorten the prompt or lower max_tokens",
            param=param,
            details={
                "prompt_tokens": prompt_tokens,
                "max_tokens": max_tokens,
                "max_model_len": max_model_len,
                "max_servable_tokens": max_servable_tokens,
            },
        )


class TemplateError(RequestError):
    code = "template_error"


class ModelNotFound(RequestError):
    status = 404
    code = "model_not_found"


class RouteNotFound(RequestError):
    status = 404
    code = "route_not_found"


class UnsupportedMedia(RequestError):
    status = 415
    code = "unsupported_media_type"


class BodyTooLarge(RequestError):
    status = 413
    code = "body_too_large"


class HeadTooLarge(RequestError):
    status = 431
    code = "headers_too_large"


class TooSlow(RequestError):
    status = 408
    code = "request_timeout"


class Unauthorized(RequestError):
    status = 401
    code = "invalid_api_key"


class Forbidden(RequestError):
    status = 403
    kind = "permission_error"
    code = "wrong_key_class"


class UnsupportedField(RequestError):
    code = "unsupported_parameter"


class Overloaded(ServekitError):
    status = 429
    kind = "rate_limit_error"
    code = "queue_full"


class SloUnattainable(Overloaded):
    code = "slo_unattainable"


class ConcurrencyExceeded(Overloaded):
    code = "concurrency_exceeded"


class RequestRateExceeded(Overloaded):
    code = "request_rate_exceeded"


class TokenRateExceeded(Overloaded):
    code = "token_rate_exceeded"


class NotReady(ServekitError):
    status = 503
    kind = "service_unavailable"
    code = "not_ready"


class TooManyConnections(NotReady):
    code = "too_many_connections"


class DeadlineExceeded(ServekitError):
    status = 504
    kind = "timeout_error"
    code = "deadline_exceeded"


class LedgerUnwritable(NotReady):
    code = "ledger_unwritable"


class EngineError(ServekitError):
    code = "engine_error"


class EngineDied(EngineError):
    status = 503
    code = "engine_died"


def from_code(code: str, message: str) -> ServekitError:
    """The error of the tree with this code, as it was told by another process."""
    kinds = [ServekitError]
    for kind in kinds:
        if kind.code == code:
            break
        kinds += kind.__subclasses__()
    else:
        kind = EngineError
    error = kind.__new__(kind)
    ServekitError.__init__(error, message)
    return error
