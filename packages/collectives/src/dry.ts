export { createDryGroup, type DryGroupOptions } from './transports/dry.js';
