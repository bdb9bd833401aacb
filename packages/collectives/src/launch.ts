export { LaunchError } from './errors.js';
export {
  type InitProcessGroupOptions,
  initProcessGroup,
  type LaunchTransport,
} from './launch/init-process-group.js';
export type { EnvVariables } from './launch/launchers/environment.js';
export type { Launcher, LauncherName } from './launch/launchers/launcher.js';
export type { PlaceOptions } from './launch/place.js';
export { readLauncher } from './launch/read-launcher.js';
