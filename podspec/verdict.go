package podspec

// Verdict is the answer to whether a pod may run here. A refusal has a Reason
// in one CamelCase word and a Message for people; both go into the pod's status.
type Verdict struct {
	OK              bool
	Reason, Message string
}

// Admitted returns the verdict that lets a pod run.
func Admitted() Verdict { return Verdict{OK: true} }

// Refused returns the verdict that keeps a pod from running.
func Refused(reason, message string) Verdict { return Verdict{Reason: reason, Message: message} }
