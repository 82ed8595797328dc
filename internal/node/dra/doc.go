// Package dra is the front end of Dynamic Resource Allocation: it prepares the claims that the scheduler has allocated on this node,
// and reports the health of the devices to the kubelet.
//
// It guarantees that the devices of a claim are in the ledger, on disk and all of them or none, before the kubelet gets an answer; that
// a device that another holder has is refused with that holder's name; that prepare and unprepare can be repeated, and a retry that comes
// while the first call is under way waits for it, and says so when that call does not return; that one claim's slow work delays no other
// claim; and that no API or file call is made under a lock that two claims share. It must not import the device plugin's front end.
//
// It prepares whole GPUs and MIG devices, and gives devices for admin access without holding them. A MIG device of a dynamic GPU is held
// by its placement before it exists, so that it is created for no other claim. The opaque configuration under the driver's name is decoded
// strictly (config.ParseClaim); of several for a request the last one of the claim is in force, else the last one of the class. What is
// wrong in it, and a share of a device, is refused: the error names the claim, the request and the field.
//
// # Order of one prepare
//
//  1. Lock the claim, by UID: a claim with the name of an older one is another claim. End if the kubelet no longer waits.
//  2. Find the devices: results of other drivers are skipped.
//  3. Check the health of the devices, and that the CDI spec on disk has those that exist.
//  4. Acquire all devices in the ledger, a MIG device of a dynamic GPU by its placement.
//  5. For each device of a dynamic GPU: wait until it exists (Deps.Ensure), change the hold on the placement into one on the MIG device,
//     and wait until the CDI spec on disk has it. What creates it follows the ledger and not this call: it also creates the device when
//     this call has ended.
//  6. Wait until each GPU has the time slice of the configuration (Deps.Sliced). The holding in the ledger has it since step 4, and what
//     sets it follows the ledger, so that the release of the claim, whatever ends it, sets the driver's default again.
//  7. Wait until each whole GPU has the MPS daemon of the configuration, or none (Deps.Served): one that is left of an earlier claim
//     makes the GPU unusable for other processes. What starts and ends daemons follows the ledger too.
//  8. Answer with the CDI names of the node's spec, and with those of the MPS daemons. A claim has no spec of its own.
//
// Nothing before step 4 changes anything, and the steps from 4 on can be repeated; so a prepare that is killed anywhere is finished by the
// kubelet's retry, or undone by its unprepare. An unprepare releases the claim in the ledger and waits for nothing: a MIG device that
// nothing holds is destroyed then, and a prepare that needs its slices waits for that in step 4. A prepare takes at most 40 s, so that the
// kubelet gets the reason. An unprepare takes the lock too, and the kubelet calls it only when its prepare has returned. A
// prepare that the kubelet has given up is canceled before a later unprepare is delivered, because both use one connection. So no
// prepare acquires devices after the unprepare.
//
// # What the kubelet 1.37 does (k8s.io/kubernetes v1.37.1, pkg/kubelet)
//
// The claims that are prepared:
//
//   - It calls NodePrepareResources only before it makes a pod's sandbox (kuberuntime/kuberuntime_manager.go:1680, 1720), and not for a
//     claim that it has prepared since its own start (cm/dra/manager.go:387). After its restart no claim counts as prepared
//     (cm/dra/claiminfo.go:143), but running pods keep their sandboxes. So a ledger that is lost is not restored by retries.
//   - It records a claim with its pods before the call (cm/dra/manager.go:382) and its devices after all drivers have answered
//     (cm/dra/manager.go:486), in <root>/dra_manager_state. An entry without devices of a driver was not prepared by it. Adopt reads
//     that file, which is the only record of prepared claims outside the ledger.
//   - It does not unprepare a claim that this file does not list (cm/dra/manager.go:667). When the file is lost, the ledger keeps the
//     claim until something else releases it. When the file is damaged, the kubelet does not start (cm/dra/claiminfo.go:238).
//   - It unprepares a claim when the last of its pods ends, also one whose prepare failed, because the pod's reference was recorded
//     before (cm/dra/manager.go:678). It retries failed unprepares every 60 s (cm/dra/manager.go:61, 187).
//   - A further pod that uses a prepared claim causes no call (cm/dra/manager.go:387). It is in dra_manager_state before its sandbox is
//     made (cm/dra/manager.go:376, 382), and stays there at least until its containers have ended (cm/dra/manager.go:696). The ledger
//     gets a claim's pods from there.
//   - Each call has 45 s (cm/dra/plugin/dra_plugin.go:43). One failed claim fails the pod's whole prepare.
//   - It repeats a failed prepare only with the pod's next regular sync, 60 to 90 s later, because SyncPod returns no error
//     (kuberuntime/kuberuntime_manager.go:1720, pod_workers.go:1531; tried: 69 s). So a prepare waits for what is about to be ready.
//
// The slices:
//
//   - At its start it deletes the ResourceSlices of all drivers of the Node in the background, with retries from 1 s to 5 min
//     (cm/dra/plugin/dra_plugin_manager.go:180, 217). That can be before or after a driver registers.
//   - It deletes a driver's slices 30 s after the driver's last connection has ended (cm/dra/manager.go:75, dra_plugin_manager.go:504).
//   - Registration calls GetInfo and NotifyRegistrationStatus of the registration socket, at every start of the kubelet
//     (pluginmanager/operationexecutor/operation_generator.go:98, 138). NotifyRegistrationStatus comes after the driver was stored, and
//     the Server takes it as the sign of a new registration.
//
// The health of devices:
//
//   - It judges the age of a report by the time in it, and not by its arrival (cm/dra/manager.go:1071, cm/dra/healthinfo.go:157), so
//     each report has the present time.
//   - When a stream ends, it forgets the health of the driver's devices, and opens the next stream 5 s later
//     (cm/dra/manager.go:1083, cm/dra/plugin/dra_plugin_manager.go:433).
//
// # What the helper library does (k8s.io/dynamic-resource-allocation v0.37.1)
//
//   - A deleted slice is made again 30 s after its deletion (resourceslice/resourceslicecontroller.go:69, 667); PublishResources causes a
//     comparison at once (:423). Its first call waits until the API server has listed the slices, in steps of 1 s (:685).
//   - A failed write is repeated after up to 1,000 s (:522, the default rate limiter), and success is not reported. See package publish.
//   - The interceptors get the calls of both sockets (kubeletplugin/draplugin.go:1058, 1103).
//   - Stop does not wait for calls that are under way; the Server does.
//   - A socket of an instance that was killed stays. The Server removes those that no process serves.
package dra
