export { LaunchError } from './errors.js';
export type { EnvVariables } from './launch/environment.js';
export {
  type InitProcessGroupOptions,
  initProcessGroup,
  type LaunchTransport,
} from './launch/init-process-group.js';
export type { Launcher, LauncherName } from './launch/launcher.js';
export type { PlaceOptions } from './launch/place.js';
export { readLauncher } from './launch/read-launcher.js';
