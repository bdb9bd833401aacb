// The part of the package that needs Node: files.

export { type DiskStoreOptions, openDiskStore } from './disk/disk-store.js';
export {
  type FileLayer,
  nodeFiles,
  type OpenFile,
  withFile,
  writeFully,
} from './disk/file-layer.js';
export { lockDirectory, type OwnerLock } from './disk/owner-lock.js';
