// Package devices asks Kubernetes' own plugin for devices, DynamicResources, where the pods of a gang get theirs.
//
// It guarantees that an answer is that of the plugin itself, with the feature gates of the scheduler: for ResourceClaims of any driver and
// form, shared ones, and extended resources that a DeviceClass serves; and that nobody but the asker sees what is tried: nothing of it
// reaches the scheduler's state or the API server. It must not decide which node is the better one.
package devices
