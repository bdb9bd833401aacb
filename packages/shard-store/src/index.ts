export { createDryStore, type DryStoreOptions } from './dry-store.js';
export * from './errors.js';
export { createHostStore, type HostStoreOptions } from './host-store.js';
export type { PinnedValue, ReadOptions, ShardStore, WriteOptions } from './store.js';
