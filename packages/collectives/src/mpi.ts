export { type ConnectMpiOptions, connectMpi } from './transports/mpi/connect-mpi.js';
