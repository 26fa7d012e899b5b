// Package swap shows how the components of an agent are decorated, and how they are replaced
// by implementations of one's own. Each Example builds an agent with agent.New, and runs
// a pod with it from its start to its removal.
//
// The implementations are as small as the interfaces allow. Each leaves out what the
// component of the agent does in addition, and says so.
package swap
