export { type CpuBackendOptions, createCpuBackend, MAX_THREADS } from './create-cpu-backend.js';
