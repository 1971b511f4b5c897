package rpc

// SessionIDRule is the rule for session ids, in words.
const SessionIDRule = "1 to 128 characters, letters, digits, '_', '.' and '-', the first one a letter or a digit"

// maxSessionID is the length of the longest session id, in bytes.
const maxSessionID = 128

// CheckSessionID returns CodeInvalidRequest, naming the rule, for a string
// that cannot be a session id.
func CheckSessionID(id string) error {
	ok := id != "" && len(id) <= maxSessionID
	for i := 0; ok && i < len(id); i++ {
		c := id[i]
		alnum := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
		ok = alnum || i > 0 && (c == '_' || c == '.' || c == '-')
	}
	if ok {
		return nil
	}
	shown := id
	if len(shown) > 40 {
		shown = shown[:40] + "…"
	}
	return Errorf(CodeInvalidRequest, "session id %q (%d bytes) is not valid: %s", shown, len(id), SessionIDRule).
		with("field", "session")
}
