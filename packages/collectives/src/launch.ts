export { LaunchError, StoreError, type StoreErrorCode, type StoreErrorDetails } from './errors.js';
export type { EnvVariables } from './launch/environment.js';
export {
  type InitProcessGroupOptions,
  initProcessGroup,
  type LaunchTransport,
} from './launch/init-process-group.js';
export { type InitStoreOptions, initStore } from './launch/init-store.js';
export type { Launcher, LauncherName } from './launch/launcher.js';
export type { PlaceOptions } from './launch/place.js';
export { readLauncher } from './launch/read-launcher.js';
export { type ConnectStoreOptions, connectStore } from './store/connect-store.js';
export type { CompareSetResult, Store, StoreWaitOptions } from './store/store.js';
export { DEFAULT_STORE_LIMITS, type StoreLimits } from './store/store-limits.js';
export { StoreServer, type StoreServerOptions } from './store/store-server.js';
