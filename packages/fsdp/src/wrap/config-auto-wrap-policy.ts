// Wraps exactly the modules that bring a wrapperConfig.

import type { WrapPolicy } from './auto-wrap.js';
import { wrapperConfigOf } from './enable-wrap.js';

/** Looks everywhere; wraps what has a wrapperConfig, however small. */
export const configAutoWrapPolicy: WrapPolicy = ({ module, question }) =>
  question === 'recurse' || wrapperConfigOf(module) !== undefined;
