// Where this process stands in its job, as its launcher says: torchrun, srun, Open MPI, PyTorchJob or the
// program's own launcher (launch.h fills it in, make_communicator takes it).
#pragma once

#include <string>

namespace osdn::dist {

struct LaunchEnvironment {
  int rank = 0;              // 0 .. world_size - 1, over all nodes
  int world_size = 1;        // processes of the job
  int local_rank = 0;        // 0 .. local_world_size - 1, on this node: the index of its GPU
  int local_world_size = 1;  // processes of this node
  std::string master_addr;   // where the processes meet; empty in a world of one
  int master_port = 0;       // TCP port of the meeting place on master_addr
  int restart_count = 0;  // how often the launcher started the job again; separates one meeting from the next
  bool launcher_serves =
      false;  // the launcher listens on master_port itself (torchrun, osdn); else rank 0 does
};

}  // namespace osdn::dist
