export {
  type CpuBackendOptions,
  createCpuBackend,
  findNativeProducts,
} from './create-cpu-backend.js';
