// Entry of a worker file, for bundlers and for pages whose policy forbids Blob URLs: give its URL
// to createCpuBackend as `workerUrl`.

import { workerMain } from './worker-main.js';

workerMain();
