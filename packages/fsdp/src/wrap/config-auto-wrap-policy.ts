// The policy that wraps exactly the modules that have a wrapperConfig.

import type { WrapPolicy } from './auto-wrap.js';
import { wrapperConfigOf } from './enable-wrap.js';

/** Looks at every module, and wraps those that have a wrapperConfig, however small they are. */
export const configAutoWrapPolicy: WrapPolicy = ({ module, question }) =>
  question === 'recurse' || wrapperConfigOf(module) !== undefined;
