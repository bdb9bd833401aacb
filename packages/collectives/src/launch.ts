export type { EnvVariables } from './launch/environment.js';
export { LaunchError } from './launch/launch-error.js';
export type { Launcher, LauncherName } from './launch/launcher.js';
export { readLauncher } from './launch/read-launcher.js';
