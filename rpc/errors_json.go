package rpc

import (
	"encoding/json"
	"errors"
	"maps"
	"math"
	"net/http"
	"slices"
	"time"
)

// errorBody is an Error as it travels: RetryAfter is a JSON number of seconds.
type errorBody struct {
	Code       Code           `json:"code"`
	Message    string         `json:"message"`
	Retryable  bool           `json:"retryable"`
	RetryAfter float64        `json:"retry_after,omitempty"`
	Details    map[string]any `json:"details,omitempty"`
}

// MarshalJSON writes retry_after as a number of seconds.
func (e *Error) MarshalJSON() ([]byte, error) {
	return json.Marshal(errorBody{e.Code, e.Message, e.Retryable, e.RetryAfter.Seconds(), e.Details})
}

// UnmarshalJSON reads what MarshalJSON writes. Unknown fields are ignored; a
// retry_after that is no sensible time reads as 0.
func (e *Error) UnmarshalJSON(data []byte) error {
	var b errorBody
	if err := json.Unmarshal(data, &b); err != nil {
		return err
	}
	*e = Error{Code: b.Code, Message: b.Message, Retryable: b.Retryable, Details: b.Details}
	if b.RetryAfter > 0 && b.RetryAfter < math.MaxInt64/float64(time.Second) {
		e.RetryAfter = time.Duration(b.RetryAfter * float64(time.Second))
	}
	return nil
}

// HTTPStatus is the HTTP status that carries the code; 500 for one that is not
// in the set.
func (c Code) HTTPStatus() int {
	if s, ok := httpStatus[c]; ok {
		return s
	}
	return http.StatusInternalServerError
}

// Codes lists the closed set of codes, sorted.
func Codes() []Code { return slices.Sorted(maps.Keys(httpStatus)) }

// CodeOf returns the code of the first *Error in err's chain, and "" when
// there is none.
func CodeOf(err error) Code {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

// retryIn marks e as worth another try after d.
func (e *Error) retryIn(d time.Duration) *Error {
	e.Retryable, e.RetryAfter = true, d
	return e
}

// with adds one detail for programs.
func (e *Error) with(name string, value any) *Error {
	if e.Details == nil {
		e.Details = map[string]any{}
	}
	e.Details[name] = value
	return e
}
