export { type CpuBackendOptions, createCpuBackend } from './create-cpu-backend.js';
