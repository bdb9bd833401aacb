// What the messages of all packages are made of. It is an entry of its own, so that who converts
// numbers has nothing of it.

export { CodedError } from './messages/coded-error.js';
export { editDistance } from './messages/edit-distance.js';
export { byteUnit, formatBytes } from './messages/format-bytes.js';
export { withoutStop } from './messages/without-stop.js';
