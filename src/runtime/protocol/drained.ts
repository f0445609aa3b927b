/** What a device is told that was taken out of a run which goes on. */
export const drainedReason = 'the device was drained';
