// Entry of a worker file, for bundlers and for pages whose policy forbids Blob URLs. Its URL is
// passed to createCpuBackend as `workerUrl`.

import { workerMain } from './worker-main.js';

workerMain();
