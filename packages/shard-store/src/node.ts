// What needs Node: files.

export { type DiskStoreOptions, openDiskStore } from './disk/disk-store.js';
export { type FileLayer, nodeFiles, type OpenFile } from './disk/file-layer.js';
