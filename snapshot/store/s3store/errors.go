package s3store

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"

	"github.com/minio/minio-go/v7"

	"github.com/hibernate-runtime/hibernate/snapshot/store"
)

// failure makes an error of minio-go one of the contract's. Those of transports are told by their text alone: some say of
// themselves that they are context.DeadlineExceeded, which would be the caller's.
func (s *Store) failure(ctx context.Context, w *watch, op, name string, err error) error {
	at := fmt.Sprintf("%s %s in bucket %s of %s", op, name, s.config.Bucket, s.config.Endpoint)
	if ended := ctx.Err(); ended != nil {
		return fmt.Errorf("%s: %w", at, ended)
	}
	if stalled := (stalledError{}); w != nil && errors.As(context.Cause(w.ctx), &stalled) {
		return fmt.Errorf("%s: %w: %w", at, store.ErrUnavailable, stalled)
	}
	if errors.Is(err, store.ErrRefused) || errors.Is(err, store.ErrUnavailable) {
		return fmt.Errorf("%s: %w", at, err)
	}
	if answer, ok := errors.AsType[minio.ErrorResponse](err); ok && answer.StatusCode != 0 {
		hint, kind := s.answered(answer)
		return fmt.Errorf("%s: %w: %s (%d %s)%s", at, kind, strings.TrimSuffix(answer.Error(), "."), answer.StatusCode, answer.Code, hint)
	}
	if hint := refusal(err); hint != "" {
		return fmt.Errorf("%s: %w: %v: %s", at, store.ErrRefused, err, hint)
	}
	return fmt.Errorf("%s: %w: %v", at, store.ErrUnavailable, err)
}

// said is whether the server itself has named the code: minio-go makes one up from the status of an answer that has none.
func said(answer minio.ErrorResponse, code string) bool {
	return answer.XMLName.Local == "Error" && answer.Code == code
}

// absent is whether the server says for certain that there is no such object.
func absent(err error) bool {
	answer, ok := errors.AsType[minio.ErrorResponse](err)
	return ok && answer.StatusCode == http.StatusNotFound && said(answer, minio.NoSuchKey)
}

func status(err error) int {
	answer, _ := errors.AsType[minio.ErrorResponse](err)
	return answer.StatusCode
}

// hints are what to do about codes that need a person. Those that begin with XAdmin are versitygw's, which answers 404 to
// an access key that it doesn't know.
var hints = map[string]string{
	minio.AccessDenied:             "the credentials have no right to do this: allow s3:GetObject, PutObject, DeleteObject and ListBucket there",
	"InvalidAccessKeyId":           "the store doesn't know the access key: correct the credentials",
	"XAdminUserNotFound":           "the store doesn't know the access key: correct the credentials",
	"XAdminNoSuchUser":             "the store doesn't know the access key: correct the credentials",
	"SignatureDoesNotMatch":        "the secret key isn't the access key's: correct the credentials",
	"InvalidToken":                 "the session token is wrong: get new credentials",
	"ExpiredToken":                 "the session has ended: get new credentials",
	"ExpiredTokenException":        "the session has ended: get new credentials",
	"RequestTimeTooSkewed":         "set this machine's clock",
	"RequestExpired":               "set this machine's clock",
	"AuthorizationHeaderMalformed": "the region may be another one: correct region= in the URL",
	"InvalidRegion":                "correct region= in the URL",
	"PermanentRedirect":            "the bucket is in another region: correct region= or endpoint= in the URL",
	"NoSuchBucket":                 "make the bucket, or correct its name in the URL",
	"AllAccessDisabled":            "the account is blocked: ask who runs the store",
	"EntityTooLarge":               "the store takes no object of this size",
	"NotImplemented":               "the store can't do what is needed of it: use another",
}

// answered decides what an answer with an error means.
func (s *Store) answered(answer minio.ErrorResponse) (hint string, kind error) {
	// Of an answer 404 that can't be read minio-go says that the bucket isn't there, or the object.
	made := answer.StatusCode == http.StatusNotFound && !said(answer, answer.Code)
	if text, ok := hints[answer.Code]; ok && !made {
		if answer.Region != "" && strings.Contains(text, "region=") {
			text += ", to " + answer.Region
		}
		if skew := s.answers.told(); skew != "" && answer.StatusCode == http.StatusForbidden {
			text += "; " + skew
		}
		return ": " + text, store.ErrRefused
	}
	switch code := answer.StatusCode; {
	case code == http.StatusNotFound:
		return ": it doesn't say what isn't there; is this an S3 server, or a proxy before one that is away?", store.ErrUnavailable
	case code == http.StatusConflict: // versitygw says so, too, of a directory that another deletion cleans up just now
		return ": another write or deletion was under way there", store.ErrUnavailable
	case answer.Code == "BadDigest", answer.Code == "XAmzContentSHA256Mismatch":
		return ": other bytes arrived than were sent", store.ErrUnavailable
	case code == http.StatusRequestTimeout, code == http.StatusTooManyRequests, code == 499, code >= 500 && code != http.StatusNotImplemented:
		return "", store.ErrUnavailable
	}
	return "", store.ErrRefused
}

// refusal is what to do about a connection that will not become better by itself; empty when it may.
func refusal(err error) string {
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return "its certificate is signed by nobody who is trusted here: name its CA by ca=/file in the URL"
	}
	if _, ok := errors.AsType[x509.HostnameError](err); ok {
		return "the certificate is for another host: correct endpoint= in the URL"
	}
	if invalid, ok := errors.AsType[x509.CertificateInvalidError](err); ok {
		if invalid.Reason == x509.Expired {
			return "the certificate has run out or isn't valid yet: renew it, or set this machine's clock"
		}
		return "the certificate can't be used for this: get another one"
	}
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok || strings.Contains(err.Error(), "server gave HTTP response to HTTPS client") {
		return "the server doesn't speak TLS: write http:// in endpoint="
	}
	if dns, ok := errors.AsType[*net.DNSError](err); ok && dns.IsNotFound {
		return "no host has that name: correct endpoint= in the URL"
	}
	return ""
}
