package httpserver

import (
	"encoding/json"
	"net/http"
	"time"
)

// Lines is an answer of JSON values, one on each line, that lasts as long as its handler and its client want: the server's times count for
// each line.
type Lines struct {
	control *http.ResponseController
	encoder *json.Encoder
}

// NewLines begins such an answer. The handler has read the request.
func NewLines(w http.ResponseWriter) *Lines {
	l := &Lines{http.NewResponseController(w), json.NewEncoder(w)}
	// The deadline for the request would end its context. A writer without deadlines is a test's.
	_ = l.control.SetReadDeadline(time.Time{})
	return l
}

// Write sends a line at once.
func (l *Lines) Write(line any) error {
	_ = l.control.SetWriteDeadline(time.Now().Add(requestTime))
	if err := l.encoder.Encode(line); err != nil {
		return err
	}
	return l.control.Flush()
}
