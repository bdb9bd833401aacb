// The part of the package that needs Node: files.

export { type DiskStoreOptions, openDiskStore } from './disk/disk-store.js';
export {
  type FileLayer,
  type OpenFile,
  withFile,
  writeFully,
} from './disk/file-layer.js';
export { nodeFiles } from './disk/node-files.js';
export { hasOwner, lockDirectory, type OwnerLock } from './disk/owner-lock.js';
