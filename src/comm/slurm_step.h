// What srun tells a rank of its step's nodes.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace tutti::comm {

/// Of a list such as "box-[01-04,7],other" (SLURM_STEP_NODELIST): the first node's name; "": it is no such list. Slurm starts rank 0 there.
std::string first_node(std::string_view nodes);

/// Of a list such as "4(x2),3" (SLURM_STEP_TASKS_PER_NODE): how many ranks the node has, nodes counted from 0; nothing: it does not say.
std::optional<int> tasks_of_node(std::string_view tasks, int node);

}  // namespace tutti::comm
