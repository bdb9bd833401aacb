export * from './errors.js';
export { createHostStore, type HostStoreOptions } from './host-store.js';
export type { ReadOptions, ShardStore } from './store.js';
